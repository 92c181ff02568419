/**
 * What the page knows of the host itself: its agents, their modes, and directories. It comes over AHP, whose client is loaded after
 * the page is there.
 */

import { requestIdle } from './ui/dom.js';
import { pathOf, uriOf } from './ui/format.js';
import { randomId } from './ids.js';

/** @typedef {import('./lazy/ahp/client.js').AhpClient} AhpClient */
/** @typedef {import('./ui/new_session.js').Host} Facts */

/** The root channel of AHP. */
const ROOT = 'ahp-root://';

/** Events: `sessions` when the list of sessions has changed, `facts` when agents have. */
export class Host extends EventTarget {
  /** @param {import('./v2/connection.js').Connection} connection @param {import('./traffic.js').Traffic} traffic */
  constructor(connection, traffic) {
    super();
    this.connection = connection;
    this.traffic = traffic;
    /** @type {Promise<AhpClient> | null} */
    this.client = null;
    /** The same, once it is loaded. @type {AhpClient | null} */
    this.present = null;
    /** @type {any[]} */
    this.agents = [];
    /** @type {Map<string, Promise<{choices: import('./ui/composer.js').Choice[], value: string}>>} */
    this.modes = new Map();
  }

  /** The host can be reached (again): connects when the page has nothing more urgent to do. */
  wake() {
    requestIdle(() => void this.ahp().then((client) => client.wake(), () => {}));
  }

  /** @returns {Promise<AhpClient>} */
  ahp() {
    this.client ??= this.#connect();
    this.client.catch(() => (this.client = null));
    return this.client;
  }

  async #connect() {
    const { AhpClient } = await import('./lazy/ahp/client.js');
    const client = new AhpClient(() => this.connection.token, this.traffic);
    this.present = client;
    const agents = new Promise((resolve) =>
      client.subscribe(ROOT, {
        snapshot: (state) => resolve(this.#agentsAre(state.agents)),
        action: (action) => {
          if (action.type === 'root/agentsChanged') this.#agentsAre(action.agents);
        },
      }),
    );
    client.addEventListener('notification', (event) => {
      const { method } = /** @type {CustomEvent} */ (event).detail;
      if (method.startsWith('root/session')) this.#sessionsChanged();
    });
    await client.ready();
    await agents;
    return client;
  }

  /** @param {any[]} agents */
  #agentsAre(agents) {
    this.agents = agents;
    this.modes.clear();
    this.dispatchEvent(new Event('facts'));
  }

  #sessionsChanged() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.dispatchEvent(new Event('sessions')), 200);
  }

  /** @type {number | undefined} */
  timer = undefined;

  /** @returns {Promise<Facts>} */
  async facts() {
    const client = await this.ahp();
    return {
      agents: this.agents,
      directory: pathOf(client.info.defaultDirectory ?? ''),
      modes: (provider) => this.#modesOf(client, provider),
      directories: async (path) => {
        const { entries } = await client.request('resourceList', { channel: ROOT, uri: uriOf(path) });
        return entries.filter((/** @type {any} */ entry) => entry.type === 'directory').map((/** @type {any} */ entry) => entry.name);
      },
    };
  }

  /** @param {AhpClient} client @param {string} provider */
  #modesOf(client, provider) {
    let modes = this.modes.get(provider);
    if (!modes) {
      const asked = client.request('resolveSessionConfig', { channel: ROOT, provider });
      modes = asked.then(({ schema, values }) => {
        const mode = schema.properties.mode;
        const choices = (mode?.enum ?? []).map((/** @type {string} */ value, /** @type {number} */ at) => ({ value, label: mode.enumLabels?.[at] ?? value }));
        return { choices, value: values.mode ?? '' };
      });
      modes.catch(() => this.modes.delete(provider));
      this.modes.set(provider, modes);
    }
    return modes;
  }

  isConnected() {
    return this.present?.isOpen ?? false;
  }

  /** Cuts the link, as a bad network would. */
  drop() {
    this.present?.drop();
  }

  /** What both sides take, as it was negotiated. */
  limits() {
    return this.present?.limits() ?? null;
  }

  /** Large messages that are under way. */
  transfers() {
    return this.present?.transfers() ?? [];
  }

  /** Whether chats of this agent can be forked, and have side chats. @param {string} provider */
  canBranch(provider) {
    return Boolean(this.agents.find((agent) => agent.provider === provider)?.capabilities?.multipleChats?.fork);
  }

  /**
   * Makes a chat that continues from a turn, or that is about it; returns its name.
   * @param {string} session @param {string | null} chat the chat of the turn; `null` for the main one
   * @param {string} turnId @param {'fork' | 'sideChat'} kind @returns {Promise<string>}
   */
  async branch(session, chat, turnId, kind) {
    const client = await this.ahp();
    const of = chat ?? (await client.read(session)).defaultChat;
    const made = `ahp-chat:/${randomId()}`;
    await client.request('createChat', { channel: session, chat: made, source: { kind, chat: of, turnId } });
    return made;
  }
}
