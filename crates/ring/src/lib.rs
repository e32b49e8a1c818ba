//! netacc-ring
