//! netacc-core
