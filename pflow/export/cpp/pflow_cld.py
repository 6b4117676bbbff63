"""Particle flow in CLD: k4run pflow_cld.py --model MODEL --input IN.root --output OUT.root [--threads N --mc-links]"""

from Configurables import AvalancheSchedulerSvc, EventDataSvc, HiveSlimEventLoopMgr, HiveWhiteBoard, PFlowReconstruction
from Gaudi.Configuration import INFO
from k4FWCore import ApplicationMgr, IOSvc
from k4FWCore.parseArgs import parser

options = parser.add_argument_group("pflow")
options.add_argument("--model", default="model", help="folder that `pflow export` wrote (default: %(default)s)")
options.add_argument(
    "--input", nargs="+", default=["in.edm4hep.root"], help="digitised hits and tracks of CLD (default: %(default)s)"
)
options.add_argument("--output", default="out.root", help="file that gets PFlow, too (default: %(default)s)")
options.add_argument("--threads", type=int, default=1, help="events at a time")
options.add_argument("--mc-links", action="store_true", help="link particles to MCParticles, by the input's links")
args = parser.parse_known_args()[0]

io = IOSvc("IOSvc")
io.Input = args.input
io.Output = args.output
io.OutputType = "rntuple"  # podio 1.7 aborts some jobs that write a TTree

pflow = PFlowReconstruction(
    "PFlowReconstruction",
    Model=args.model,
    HitLinks=["CalohitMCTruthLink"] if args.mc_links else [],
    TrackLinks=["SiTracksMCTruthLink"] if args.mc_links else [],
    Field=2.0,  # T; without it the field of a GeoSvc is compared with the model's, if the job has one
)

job = {"TopAlg": [pflow], "EvtSel": "NONE", "EvtMax": -1, "OutputLevel": INFO}
if args.threads == 1:
    ApplicationMgr(ExtSvc=[EventDataSvc("EventDataSvc")], **job)
else:
    AvalancheSchedulerSvc(ThreadPoolSize=args.threads)
    ApplicationMgr(
        ExtSvc=[HiveWhiteBoard("EventDataSvc", EventSlots=args.threads, ForceLeaves=True)],
        EventLoop=HiveSlimEventLoopMgr("HiveSlimEventLoopMgr", SchedulerName="AvalancheSchedulerSvc"),
        MessageSvcType="InertMessageSvc",
        **job,
    )
