#include "edm4hep.h"
