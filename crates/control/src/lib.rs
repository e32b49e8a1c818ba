//! netacc-control
