//! What fuzz targets share: texts and cuts, small limits, a machine that is watched, two machines and what may happen.

mod cut;
mod play;
mod small;
mod watch;

pub use cut::{cut, text_and_cuts};
pub use play::{Act, Op, play};
pub use small::{Small, assert_same, outcome};
pub use watch::Watch;
