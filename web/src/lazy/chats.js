/** The chats of one session, as the host says over AHP: its main one, forks and side chats. */

/** @typedef {{resource: string, title: string, origin?: {kind: string}}} Chat */

/**
 * Follows them until the returned function is called.
 * @param {import('./ahp/client.js').AhpClient} ahp @param {string} session @param {(chats: Chat[], main: string) => void} tell
 */
export function followChats(ahp, session, tell) {
  /** @type {Chat[]} */
  let chats = [];
  let main = '';
  // The chats of sub-agents are shown inside of their calls.
  const say = () => tell(chats.filter(({ origin }) => origin?.kind !== 'tool'), main);
  return ahp.subscribe(session, {
    snapshot: (state) => {
      chats = state.chats;
      main = state.defaultChat;
      say();
    },
    action: (action) => {
      switch (action.type) {
        case 'session/chatAdded':
          chats = [...chats.filter(({ resource }) => resource !== action.summary.resource), action.summary];
          break;
        case 'session/chatRemoved':
          chats = chats.filter(({ resource }) => resource !== action.chat);
          break;
        case 'session/chatUpdated':
          chats = chats.map((chat) => (chat.resource === action.chat ? { ...chat, ...action.changes } : chat));
          break;
        case 'session/defaultChatChanged':
          main = action.defaultChat ?? main;
          break;
        default:
          return;
      }
      say();
    },
  });
}
