// Stand-in for podio.
#pragma once
#include <vector>

namespace podio {
template <class Number>
using UserDataCollection = std::vector<Number>;
}
