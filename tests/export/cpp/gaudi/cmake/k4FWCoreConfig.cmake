# Stand-in: GaudiConfig.cmake has its targets.
