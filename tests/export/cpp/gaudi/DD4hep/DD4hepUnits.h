// Stand-in for DD4hep.
#pragma once

namespace dd4hep {
inline constexpr double tesla = 1e-5;
}
