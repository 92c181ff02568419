//! Copying, moving and deleting.

use ahp_types::commands::{
    ResourceCopyParams, ResourceCopyResult, ResourceDeleteParams, ResourceDeleteResult, ResourceMoveParams,
    ResourceMoveResult,
};
use rustix::fs::{AtFlags, unlinkat};

use super::error::FileError;
use super::locks::Locks;
use super::roots::{FinalLink, ResolvedPath, Roots};
use super::staging::{StagedEntry, is_directory, move_into_place};
use super::tree::{self, CopyLimits, Preserve};
use super::uri::path_of;

/// What copying and moving need to know of the host.
pub(super) struct RelocateContext<'a> {
    pub(super) roots: &'a Roots,
    pub(super) locks: &'a Locks,
    pub(super) copy_limits: CopyLimits,
}

pub(super) fn copy(
    context: &RelocateContext<'_>,
    params: &ResourceCopyParams,
) -> Result<ResourceCopyResult, FileError> {
    let from = context.roots.find(&path_of(&params.source)?, FinalLink::Follow)?;
    let destination = path_of(&params.destination)?;
    let replace = !params.fail_if_exists.unwrap_or(false);
    let to = context.roots.find(&destination, if replace { FinalLink::Follow } else { FinalLink::Keep })?;
    let _alone = context.locks.two(&from.real, &to.real);
    if !ready(context.roots, &from, &to, replace)? {
        return Ok(ResourceCopyResult {});
    }
    copy_by_stage(context, &from, &to, replace, Preserve::Mode)?;
    Ok(ResourceCopyResult {})
}

pub(super) fn rename(
    context: &RelocateContext<'_>,
    params: &ResourceMoveParams,
) -> Result<ResourceMoveResult, FileError> {
    let from = context.roots.find(&path_of(&params.source)?, FinalLink::Keep)?;
    let to = context.roots.find(&path_of(&params.destination)?, FinalLink::Keep)?;
    if context.roots.any_in(&from.real) {
        return Err(FileError::IsRoot);
    }
    let replace = !params.fail_if_exists.unwrap_or(false);
    let _alone = context.locks.two(&from.real, &to.real);
    if !ready(context.roots, &from, &to, replace)? {
        return Ok(ResourceMoveResult {});
    }
    if !move_into_place(&from.dir, &from.name, &to, replace, context.copy_limits)? {
        copy_by_stage(context, &from, &to, replace, Preserve::All)?;
        tree::remove(&from.dir, &from.name, context.copy_limits.depth)?;
    }
    Ok(ResourceMoveResult {})
}

pub(super) fn delete(
    context: &RelocateContext<'_>,
    params: &ResourceDeleteParams,
) -> Result<ResourceDeleteResult, FileError> {
    let resolved = context.roots.find(&path_of(&params.uri)?, FinalLink::Keep)?;
    if context.roots.any_in(&resolved.real) {
        return Err(FileError::IsRoot);
    }
    let _alone = context.locks.one(&resolved.real);
    if params.recursive.unwrap_or(false) {
        tree::remove(&resolved.dir, &resolved.name, context.copy_limits.depth)?;
    } else if is_directory(&resolved.dir, &resolved.name)? {
        unlinkat(&resolved.dir, &resolved.name, AtFlags::REMOVEDIR)?;
    } else {
        unlinkat(&resolved.dir, &resolved.name, AtFlags::empty())?;
    }
    Ok(ResourceDeleteResult {})
}

/// Checks everything that can be checked before anything is changed. Returns `false` if source and destination are the same, so
/// that nothing is to be done.
fn ready(roots: &Roots, from: &ResolvedPath, to: &ResolvedPath, replace: bool) -> Result<bool, FileError> {
    let from_is_directory = is_directory(&from.dir, &from.name)?;
    let to_is_directory = match is_directory(&to.dir, &to.name) {
        Err(FileError::NotFound) => None,
        result => Some(result?),
    };
    if to_is_directory.is_some() && !replace {
        return Err(FileError::AlreadyExists);
    }
    if from.real == to.real {
        return Ok(false);
    }
    if roots.any_in(&to.real) {
        return Err(FileError::IsRoot);
    }
    if to.real.starts_with(&from.real) || from.real.starts_with(&to.real) {
        return Err(FileError::Overlap);
    }
    match (from_is_directory, to_is_directory) {
        (false, Some(true)) => Err(FileError::IsDirectory),
        (true, Some(false)) => Err(FileError::NotADirectory),
        _ => Ok(true),
    }
}

/// Copies to a temporary name beside the destination, then renames it.
fn copy_by_stage(
    context: &RelocateContext<'_>,
    from: &ResolvedPath,
    to: &ResolvedPath,
    replace: bool,
    keep: Preserve,
) -> Result<(), FileError> {
    let stage = StagedEntry::beside(to, context.copy_limits)?;
    tree::copy((&from.dir, &from.name), (stage.dir(), stage.name()), context.copy_limits, keep)?;
    stage.install(to, replace)
}
