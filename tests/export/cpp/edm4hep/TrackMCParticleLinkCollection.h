#pragma once
#include "TrackCollection.h"

namespace edm4hep {
using TrackMCParticleLinkCollection = Created<LinkToMC<Track>>;
}
