//! Reading along.
