"""Pictures of numbers: functions take numbers and return a Figure. The only place that uses matplotlib."""
