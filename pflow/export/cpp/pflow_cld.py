"""Particle flow on events of CLD: k4run pflow_cld.py --model MODEL --input IN.root --output OUT.root [--threads N]"""

from Configurables import AvalancheSchedulerSvc, EventDataSvc, HiveSlimEventLoopMgr, HiveWhiteBoard, PFlowReconstruction
from Gaudi.Configuration import INFO
from k4FWCore import ApplicationMgr, IOSvc
from k4FWCore.parseArgs import parser

options = parser.add_argument_group("pflow")
options.add_argument("--model", required=True, help="folder that `pflow export` wrote")
options.add_argument("--input", required=True, nargs="+", help="files with digitised hits and tracks of CLD")
options.add_argument("--output", required=True, help="file that gets the collections of the input and PFlow")
options.add_argument("--threads", type=int, default=1, help="events at a time")
args = parser.parse_known_args()[0]

io = IOSvc("IOSvc")
io.Input = args.input
io.Output = args.output
io.OutputType = "rntuple"  # podio 1.7 aborts some jobs that write a TTree

subdetectors = {  # of the model for each collection
    "ECALBarrel": "ecal_barrel",
    "ECALEndcap": "ecal_endcap",
    "HCALBarrel": "hcal_barrel",
    "HCALEndcap": "hcal_endcap",
    "HCALOther": "hcal_other",
    "MUON": "muon",
}
pflow = PFlowReconstruction(
    "PFlowReconstruction",
    Model=args.model,
    CaloHits=list(subdetectors),
    Subdetectors=subdetectors,
    Tracks=["SiTracks_Refitted"],
    Field=2.0,  # T; without it the field of a GeoSvc is compared with the model's, if the job has one
    OnError="skip",
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
