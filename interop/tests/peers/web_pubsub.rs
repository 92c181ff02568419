//! Web PubSub: the official client and service SDKs against our relay, and the whole way from an agent host to the official AHP client
//! through it.

mod capture;
mod relay;
mod sdk;
mod through;
