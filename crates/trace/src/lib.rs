//! Counters and events: one table of names, units and meanings.
