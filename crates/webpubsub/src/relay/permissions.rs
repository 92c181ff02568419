//! What a client may do: join groups, and send to them.

use std::collections::BTreeSet;

/// One of the two things that a client may be permitted to do with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    JoinLeaveGroup,
    SendToGroup,
}

impl Permission {
    /// By its name in the HTTP interface and in roles.
    pub(super) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "joinLeaveGroup" => Self::JoinLeaveGroup,
            "sendToGroup" => Self::SendToGroup,
            _ => return None,
        })
    }
}

/// What a client may do.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    join: PermittedGroups,
    send: PermittedGroups,
}

/// Which groups.
#[derive(Debug, Default)]
struct PermittedGroups {
    all: bool,
    named: BTreeSet<Box<str>>,
}

impl Permissions {
    /// What these roles permit. Those that are not known permit nothing.
    pub(super) fn of_roles<'a>(roles: impl IntoIterator<Item = &'a str>) -> Self {
        let mut permissions = Self::default();
        for role in roles {
            let Some(role) = role.strip_prefix("webpubsub.") else { continue };
            let (name, group) = role.split_once('.').map_or((role, None), |(name, group)| (name, Some(group)));
            if let Some(permission) = Permission::find(name) {
                permissions.grant(permission, group);
            }
        }
        permissions
    }

    /// Permits something for a group, or for all.
    pub(super) fn grant(&mut self, permission: Permission, group: Option<&str>) {
        let groups = self.groups_mut(permission);
        match group {
            Some(group) => drop(groups.named.insert(group.into())),
            None => groups.all = true,
        }
    }

    /// Takes back what was permitted for a group; or what was permitted for all, with what was permitted for single ones.
    pub(super) fn revoke(&mut self, permission: Permission, group: Option<&str>) {
        let groups = self.groups_mut(permission);
        match group {
            Some(group) => drop(groups.named.remove(group)),
            None => *groups = PermittedGroups::default(),
        }
    }

    /// Whether something is permitted for a group, or for all.
    pub(super) fn has(&self, permission: Permission, group: Option<&str>) -> bool {
        let groups = match permission {
            Permission::JoinLeaveGroup => &self.join,
            Permission::SendToGroup => &self.send,
        };
        groups.all || group.is_some_and(|group| groups.named.contains(group))
    }

    /// How many groups are named, so that there are not too many.
    pub(super) fn named(&self) -> usize {
        self.join.named.len() + self.send.named.len()
    }

    const fn groups_mut(&mut self, permission: Permission) -> &mut PermittedGroups {
        match permission {
            Permission::JoinLeaveGroup => &mut self.join,
            Permission::SendToGroup => &mut self.send,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Permission::{JoinLeaveGroup, SendToGroup};
    use super::*;

    #[test]
    fn a_role_permits_what_it_names_and_nothing_else() {
        let mut some =
            Permissions::of_roles(["webpubsub.joinLeaveGroup.a.b", "webpubsub.sendToGroup", "other.sendToGroup"]);
        assert!(some.has(JoinLeaveGroup, Some("a.b")) && !some.has(JoinLeaveGroup, Some("a")));
        assert!(!some.has(JoinLeaveGroup, None));
        assert!(some.has(SendToGroup, Some("a")) && some.has(SendToGroup, None));
        some.revoke(SendToGroup, None);
        some.revoke(JoinLeaveGroup, Some("a.b"));
        assert!(!some.has(SendToGroup, Some("a")) && !some.has(JoinLeaveGroup, Some("a.b")));
        assert!(!Permissions::of_roles(["webpubsub", "webpubsub.", ""]).has(SendToGroup, Some("")));
    }
}
