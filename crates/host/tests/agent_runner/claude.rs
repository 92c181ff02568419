//! The Claude adapter, against a program that plays recordings and misbehaves on request.

pub(crate) mod fake;
mod supervision;
mod turns;
