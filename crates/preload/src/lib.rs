//! libnetacc-preload.so
