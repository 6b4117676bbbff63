#pragma once
#include "CalorimeterHitCollection.h"

namespace edm4hep {
using CaloHitMCParticleLinkCollection = Created<LinkToMC<CalorimeterHit>>;
}
