//! Skeleton: filled by the first issue.
