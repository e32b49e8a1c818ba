//! netacc-proto
