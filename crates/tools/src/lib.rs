//! Shared parts of the tools.
