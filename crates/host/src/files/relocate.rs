//! Copying, moving and deleting.

use ahp_types::commands::{
    ResourceCopyParams, ResourceCopyResult, ResourceDeleteParams, ResourceDeleteResult, ResourceMoveParams,
    ResourceMoveResult,
};
use rustix::fs::{AtFlags, unlinkat};

use super::error::FileError;
use super::locks::Locks;
use super::roots::{Last, Roots, Spot};
use super::stage::{Stage, is_directory, place};
use super::tree::{self, Budget, Keep};
use super::uri::path_of;

/// What copying and moving need to know of the host.
pub(super) struct Means<'a> {
    pub(super) roots: &'a Roots,
    pub(super) locks: &'a Locks,
    pub(super) budget: Budget,
}

pub(super) fn copy(means: &Means<'_>, params: &ResourceCopyParams) -> Result<ResourceCopyResult, FileError> {
    let from = means.roots.find(&path_of(&params.source)?, Last::Follow)?;
    let destination = path_of(&params.destination)?;
    let replace = !params.fail_if_exists.unwrap_or(false);
    let to = means.roots.find(&destination, if replace { Last::Follow } else { Last::Keep })?;
    let _alone = means.locks.two(&from.real, &to.real);
    if !ready(means.roots, &from, &to, replace)? {
        return Ok(ResourceCopyResult {});
    }
    copy_by_stage(means, &from, &to, replace, Keep::Mode)?;
    Ok(ResourceCopyResult {})
}

pub(super) fn rename(means: &Means<'_>, params: &ResourceMoveParams) -> Result<ResourceMoveResult, FileError> {
    let from = means.roots.find(&path_of(&params.source)?, Last::Keep)?;
    let to = means.roots.find(&path_of(&params.destination)?, Last::Keep)?;
    if means.roots.any_in(&from.real) {
        return Err(FileError::IsRoot);
    }
    let replace = !params.fail_if_exists.unwrap_or(false);
    let _alone = means.locks.two(&from.real, &to.real);
    if !ready(means.roots, &from, &to, replace)? {
        return Ok(ResourceMoveResult {});
    }
    if !place(&from.dir, &from.name, &to, replace, means.budget)? {
        copy_by_stage(means, &from, &to, replace, Keep::All)?;
        tree::remove(&from.dir, &from.name, means.budget.depth)?;
    }
    Ok(ResourceMoveResult {})
}

pub(super) fn delete(means: &Means<'_>, params: &ResourceDeleteParams) -> Result<ResourceDeleteResult, FileError> {
    let spot = means.roots.find(&path_of(&params.uri)?, Last::Keep)?;
    if means.roots.any_in(&spot.real) {
        return Err(FileError::IsRoot);
    }
    let _alone = means.locks.one(&spot.real);
    if params.recursive.unwrap_or(false) {
        tree::remove(&spot.dir, &spot.name, means.budget.depth)?;
    } else if is_directory(&spot.dir, &spot.name)? {
        unlinkat(&spot.dir, &spot.name, AtFlags::REMOVEDIR)?;
    } else {
        unlinkat(&spot.dir, &spot.name, AtFlags::empty())?;
    }
    Ok(ResourceDeleteResult {})
}

/// Checks what can be known before anything is touched. `false`: source and destination are one, and nothing is to do.
fn ready(roots: &Roots, from: &Spot, to: &Spot, replace: bool) -> Result<bool, FileError> {
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

/// Copies beside the destination, then puts the whole in its place.
fn copy_by_stage(means: &Means<'_>, from: &Spot, to: &Spot, replace: bool, keep: Keep) -> Result<(), FileError> {
    let stage = Stage::beside(to, means.budget)?;
    tree::copy((&from.dir, &from.name), (stage.dir(), stage.name()), means.budget, keep)?;
    stage.install(to, replace)
}
