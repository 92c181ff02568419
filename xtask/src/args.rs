//! The few arguments that the commands take: a name, then flags and `--key value` pairs.

use std::str::FromStr;

use crate::run::Failure;

/// What is left of the command line.
pub(crate) struct Args(Vec<String>);

impl Args {
    /// Everything after the program's name.
    pub(crate) fn from_env() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    /// Takes the command's name.
    pub(crate) fn command(&mut self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Takes `key` and the value after it.
    pub(crate) fn value<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, Failure> {
        let Some(at) = self.0.iter().position(|arg| arg == key) else {
            return Ok(None);
        };
        self.0.remove(at);
        if at == self.0.len() {
            return Err(Failure::Usage(format!("{key} needs a value")));
        }
        let text = self.0.remove(at);
        let value = text.parse().map_err(|_| Failure::Usage(format!("{key} cannot be {text:?}")))?;
        Ok(Some(value))
    }

    /// Takes `key`, which has no value. Whether it was there.
    pub(crate) fn flag(&mut self, key: &str) -> bool {
        let at = self.0.iter().position(|arg| arg == key);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Fails if anything is left that nobody asked for.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        match self.0.first() {
            None => Ok(()),
            Some(arg) => Err(Failure::Usage(format!("unexpected argument {arg:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Args {
        Args(list.iter().map(|&arg| arg.into()).collect())
    }

    #[test]
    fn values_are_taken_by_key_in_any_order() {
        let mut args = args(&["--from", "7", "--seeds", "3"]);
        assert_eq!(args.value::<u64>("--seeds").ok(), Some(Some(3)));
        assert_eq!(args.value::<u64>("--from").ok(), Some(Some(7)));
        assert_eq!(args.value::<u64>("--from").ok(), Some(None));
        assert!(args.end().is_ok());
    }

    #[test]
    fn a_flag_is_there_or_not() {
        let mut args = args(&["--all"]);
        assert_eq!((args.flag("--all"), args.flag("--all")), (true, false));
        assert!(args.end().is_ok());
    }

    #[test]
    fn what_is_left_or_malformed_is_a_usage_error() {
        assert!(matches!(args(&["--seed", "3"]).end(), Err(Failure::Usage(_))));
        assert!(matches!(args(&["--seeds"]).value::<u64>("--seeds"), Err(Failure::Usage(_))));
        assert!(matches!(args(&["--seeds", "x"]).value::<u64>("--seeds"), Err(Failure::Usage(_))));
    }
}
