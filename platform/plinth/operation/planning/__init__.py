"""What a run is predicted to take: memory, time, devices, money. Admission of runs reads it; plans are in the ring."""
