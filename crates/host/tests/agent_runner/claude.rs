//! The Claude adapter, against a program that plays recordings and misbehaves on request.

mod fake;
mod golden;
mod supervision;
mod turns;
