"""Units, particle data, kinematics and detectors."""
