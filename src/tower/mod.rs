//! Layers for services of `tower`, axum and hyper, with the feature `tower`.
