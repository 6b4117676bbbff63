#pragma once
#include "ReconstructedParticleCollection.h"

namespace edm4hep {
using RecoMCParticleLinkCollection = Created<LinkToMC<ReconstructedParticle>>;
}
