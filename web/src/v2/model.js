/**
 * The client's state of one session, and the reducer that keeps it. It does what `breakbulk_lifecycle::v2::Model` does in Rust,
 * and is tested with the same transcripts.
 *
 * An event that was applied changes nothing when it comes again: the model knows the last one by `seq` and `sub`. The
 * server's promises are not trusted either: a message that begins while another is open ends that one, a block that is
 * unknown is created, and what comes late for a finished message is applied to it.
 */

/** @typedef {'text' | 'thinking' | 'redacted_thinking' | 'tool_use'} BlockType */
/** @typedef {{result: string, isError: boolean, bytes?: number, url?: string}} ToolOutcome */
/** @typedef {{toolName: string, toolId?: string, input?: string, outcome?: ToolOutcome}} Tool */
/**
 * @typedef {object} Block
 * @property {string} messageId the message; another one than the one that holds the block, if a sub-agent says it
 * @property {string} blockId
 * @property {BlockType} blockType
 * @property {string} content what it holds so far
 * @property {boolean} done whether it is whole
 * @property {Tool} [tool] the call, for a block of that kind
 * @property {Block[]} blocks what the call's sub-agent says, in order
 */
/** @typedef {{messageId: string, author: 'user' | 'agent', turnId?: string, blocks: Block[]}} Message */
/** @typedef {{id: string, label: string, decision: 'once' | 'always' | 'deny'}} PermissionOption */
/**
 * @typedef {object} Permission
 * @property {string} permId
 * @property {string} toolId
 * @property {string} toolName
 * @property {any} toolInput
 * @property {string} [title]
 * @property {string} [description]
 * @property {number} expiresAt
 * @property {PermissionOption[]} options
 */
/** @typedef {{id: string, prompt: string, clientMsgId?: string, truncated?: boolean}} QueuedPrompt */
/** @typedef {'idle' | 'running' | 'requires_action'} SessionState */
/**
 * @typedef {object} MessageState
 * @property {Message[]} messages messages that are whole, in order
 * @property {Message | null} current the message that the agent is saying
 * @property {boolean} running
 * @property {SessionState} state
 * @property {Permission[]} permissions
 * @property {QueuedPrompt[]} queue
 * @property {string | null} mode
 * @property {string | null} cwd
 * @property {string | null} branch
 * @property {boolean} isWorktree
 * @property {boolean} hasEarlier
 * @property {string | null} error
 * @property {boolean} ended
 */
/** @typedef {{type: string, ts: number, seq: number, sub?: number, more?: boolean, sessionId: string, [field: string]: any}} V2Event */
/** Where a block is: the message by its place, the current one being the last; then the blocks that hold each other. @typedef {{message: number, blocks: number[]}} Path */

/** @returns {MessageState} */
function nothing() {
  return {
    messages: [],
    current: null,
    running: false,
    state: 'idle',
    permissions: [],
    queue: [],
    mode: null,
    cwd: null,
    branch: null,
    isWorktree: false,
    hasEarlier: false,
    error: null,
    ended: false,
  };
}

/** Follows the events of one session. */
export class Model {
  state = nothing();
  /** Messages that have changed since somebody last looked, for whoever draws them. @type {Set<Message>} */
  touched = new Set();
  /** The last event that was applied. @type {[number, number] | null} */
  seen = null;
  /** The last entry of which all events were applied. @type {number | null} */
  lastSeq = null;
  /** The seq of the snapshot that the state was built from. @type {number | null} */
  base = null;
  /** The turn that began last. @type {string | undefined} */
  turn = undefined;
  /** Messages of sub-agents, and the calls that began them. @type {Map<string, Path>} */
  nested = new Map();
  /** The last call of each name. @type {Map<string, Path>} */
  tools = new Map();

  /** @param {string} session */
  constructor(session) {
    this.session = session;
  }

  /**
   * Takes an event. Says whether it is new: of this session, and after all that came before.
   * @param {V2Event} event
   */
  apply(event) {
    if (event.sessionId !== this.session) return false;
    const sub = event.sub ?? 0;
    if (event.type === 'session_start' && event.snapshot && this.base !== event.seq) {
      Object.assign(this, new Model(this.session), { base: event.seq });
    } else if (this.seen && (event.seq < this.seen[0] || (event.seq === this.seen[0] && sub <= this.seen[1]))) {
      return false;
    }
    this.seen = [event.seq, sub];
    this.reduce(event);
    if (!event.more) this.lastSeq = event.seq;
    return true;
  }

  /** @param {V2Event} event */
  reduce(event) {
    const { messageId, blockId, blockType, toolName, toolId } = event;
    switch (event.type) {
      case 'block_delta':
        return this.edit(messageId, blockId, blockType, (block) => void (block.content += event.delta));
      case 'block_start':
        this.edit(messageId, blockId, blockType, (block) => nameTool(block, toolName, toolId));
        return this.noteTool(messageId, blockId, toolId);
      case 'block_end':
        this.edit(messageId, blockId, blockType, (block) => {
          nameTool(block, toolName, toolId);
          end(block, event.input);
        });
        return this.noteTool(messageId, blockId, toolId);
      case 'message_start':
        return this.messageStart(messageId, event.parentToolId);
      case 'message_end':
        return this.messageEnd(messageId);
      case 'message_snapshot':
        return this.messageSnapshot(messageId, event.blocks);
      case 'tool_result':
        return this.toolResult(messageId, toolId, outcome(/** @type {any} */ (event)));
      case 'user_message':
        return this.userMessage(event.turnId, event.text);
      default:
        return this.reduceSession(event);
    }
  }

  /** @param {V2Event} event */
  reduceSession(event) {
    const state = this.state;
    switch (event.type) {
      case 'session_start':
        state.branch = event.branch ?? null;
        state.cwd = event.cwd;
        state.isWorktree = event.worktree;
        state.mode = event.mode ?? null;
        state.hasEarlier = event.hasEarlier ?? false;
        state.ended = false;
        break;
      case 'session_id':
        state.ended = false;
        break;
      case 'permission_request': {
        const permission = permissionOf(event);
        const at = state.permissions.findIndex((known) => known.permId === permission.permId);
        if (at < 0) state.permissions.push(permission);
        else state.permissions[at] = permission;
        break;
      }
      case 'permission_resolved':
      case 'permission_timeout':
        state.permissions = state.permissions.filter((known) => known.permId !== event.permId);
        break;
      case 'mode_changed':
        state.mode = event.mode;
        break;
      case 'queue_changed':
        state.queue = event.queue;
        break;
      case 'session_state':
        state.state = event.state;
        state.running = event.state !== 'idle';
        break;
      case 'turn_end':
        state.state = 'idle';
        state.running = false;
        this.finish();
        break;
      case 'error':
        state.error = event.error;
        break;
      case 'truncated':
        this.truncate(event.turnId);
        break;
      case 'session_end':
        state.state = 'idle';
        state.running = false;
        state.ended = true;
        state.permissions = [];
        state.queue = [];
        this.finish();
        break;
    }
  }

  /** @param {string} message @param {string | undefined} parent */
  messageStart(message, parent) {
    const path = parent === undefined ? undefined : this.tools.get(parent);
    if (path) this.nested.set(message, path);
    else if (!this.isCurrent(message)) this.begin(message);
  }

  /** Begins a message of the agent. One that is open is ended: somebody forgot to. @param {string} message */
  begin(message) {
    this.finish();
    this.state.current = { messageId: message, author: 'agent', turnId: this.turn, blocks: [] };
    this.touched.add(this.state.current);
  }

  /** @param {string} message */
  messageEnd(message) {
    if (this.isCurrent(message)) return this.finish();
    for (const block of this.blocks(message) ?? []) if (block.messageId === message) end(block, undefined);
  }

  /** Ends the current message, if there is one. */
  finish() {
    const message = this.state.current;
    if (!message) return;
    for (const block of message.blocks) if (!block.done) end(block, undefined);
    this.state.current = null;
    this.state.messages.push(message);
    this.touched.add(message);
  }

  /** @param {string} message @param {any[]} snapshot */
  messageSnapshot(message, snapshot) {
    if (this.place(message) === undefined) this.begin(message);
    const place = this.place(message);
    if (place === undefined) return;
    const elsewhere = (/** @type {Map<string, Path>} */ map) =>
      new Map([...map].filter(([, path]) => path.message !== place));
    this.nested = elsewhere(this.nested);
    this.tools = elsewhere(this.tools);
    const blocks = snapshot.map((block) => blockOf(block, message));
    this.noteAll(message, blocks, { message: place, blocks: [] });
    const holder = this.message(place);
    if (!holder) return;
    holder.blocks = blocks;
    this.touched.add(holder);
  }

  /** Notes where calls and messages of sub-agents are. @param {string} message @param {Block[]} blocks @param {Path} path */
  noteAll(message, blocks, path) {
    blocks.forEach((block, at) => {
      if (block.messageId !== message) this.nested.set(block.messageId, path);
      const own = { message: path.message, blocks: [...path.blocks, at] };
      if (block.tool?.toolId !== undefined) this.tools.set(block.tool.toolId, own);
      this.noteAll(message, block.blocks, own);
    });
  }

  /** @param {string} message @param {string} block @param {string | undefined} tool */
  noteTool(message, block, tool) {
    if (tool === undefined) return;
    const place = this.place(message);
    const path = this.nested.get(message) ?? (place === undefined ? undefined : { message: place, blocks: [] });
    if (!path) return;
    const at = this.blocks(message)?.findLastIndex((known) => known.blockId === block && known.messageId === message) ?? -1;
    if (at >= 0) this.tools.set(tool, { message: path.message, blocks: [...path.blocks, at] });
  }

  /** @param {string} message @param {string} tool @param {ToolOutcome} came */
  toolResult(message, tool, came) {
    const found = this.blocks(message)?.findLast((block) => block.tool?.toolId === tool);
    if (found?.tool) {
      found.tool.outcome = came;
      return;
    }
    const path = this.tools.get(tool);
    const call = path && this.block(path)?.tool;
    if (call) call.outcome = came;
  }

  /** @param {string} turn @param {string} text */
  userMessage(turn, text) {
    this.finish();
    this.turn = turn;
    this.state.error = null;
    const said = { ...emptyBlock(turn, 'b0', 'text'), content: text, done: true };
    /** @type {Message} */
    const message = { messageId: turn, author: 'user', turnId: turn, blocks: [said] };
    this.state.messages.push(message);
    this.touched.add(message);
  }

  /** @param {string | undefined} turn */
  truncate(turn) {
    const { messages, hasEarlier } = this.state;
    let left = 0;
    if (turn !== undefined) {
      const last = messages.findLastIndex((said) => said.turnId === turn);
      if (last < 0 && !hasEarlier) return;
      left = last + 1;
    }
    this.state.current = null;
    messages.length = left;
    const kept = (/** @type {Map<string, Path>} */ map) => new Map([...map].filter(([, path]) => path.message < left));
    this.nested = kept(this.nested);
    this.tools = kept(this.tools);
    this.state.state = 'idle';
    this.state.running = false;
  }

  /**
   * Changes a block, which is created if it is unknown; and so is its message.
   * @param {string} message @param {string} block @param {BlockType} kind @param {(block: Block) => void} change
   */
  edit(message, block, kind, change) {
    if (!this.blocks(message)) this.begin(message);
    const blocks = this.blocks(message);
    if (!blocks) return;
    let found = blocks.findLast((known) => known.blockId === block && known.messageId === message);
    if (!found) blocks.push((found = emptyBlock(message, block, kind)));
    change(found);
  }

  /** The blocks of a message; for one of a sub-agent, those of its call. @param {string} message */
  blocks(message) {
    const path = this.isCurrent(message) ? undefined : this.nested.get(message);
    if (path) return this.block(path)?.blocks;
    const place = this.place(message);
    const holder = place === undefined ? undefined : this.message(place);
    if (holder) this.touched.add(holder);
    return holder?.blocks;
  }

  /** @param {string} message */
  isCurrent(message) {
    return this.state.current?.messageId === message;
  }

  /** The place of a message of the agent itself: the last of that name. @param {string} message */
  place(message) {
    if (this.isCurrent(message)) return this.state.messages.length;
    const at = this.state.messages.findLastIndex((said) => said.messageId === message && said.author === 'agent');
    return at < 0 ? undefined : at;
  }

  /** @param {number} place */
  message(place) {
    return place === this.state.messages.length ? (this.state.current ?? undefined) : this.state.messages[place];
  }

  /** @param {Path} path */
  block(path) {
    const holder = this.message(path.message);
    if (holder) this.touched.add(holder);
    /** @type {Block | undefined} */
    let block;
    for (const at of path.blocks) block = (block ?? holder)?.blocks[at];
    return block;
  }
}

/** @param {string} messageId @param {string} blockId @param {BlockType} blockType @returns {Block} */
function emptyBlock(messageId, blockId, blockType) {
  return { messageId, blockId, blockType, content: '', done: false, blocks: [] };
}

/** A block as a snapshot has it. @param {any} block @param {string} holder @returns {Block} */
function blockOf(block, holder) {
  /** @type {Block} */
  const made = {
    messageId: block.messageId ?? holder,
    blockId: block.blockId,
    blockType: block.blockType,
    content: block.content ?? '',
    done: block.done,
    blocks: (block.blocks ?? []).map((/** @type {any} */ inner) => blockOf(inner, holder)),
  };
  if (block.toolName !== undefined && block.toolId !== undefined) {
    made.tool = { toolName: block.toolName, toolId: block.toolId, input: block.input };
    if (block.result !== undefined) made.tool.outcome = outcome(block);
  }
  return made;
}

/** @param {{result: string, isError?: boolean, bytes?: number, url?: string}} said @returns {ToolOutcome} */
function outcome({ result, isError, bytes, url }) {
  return { result, isError: isError ?? false, bytes, url };
}

/** @param {V2Event} event @returns {Permission} */
function permissionOf({ permId, toolId, toolName, toolInput, title, description, expiresAt, options }) {
  return { permId, toolId, toolName, toolInput, title, description, expiresAt, options: options ?? [] };
}

/** @param {Block} block @param {string | undefined} name @param {string | undefined} tool */
function nameTool(block, name, tool) {
  if (name === undefined && tool === undefined) return;
  block.tool ??= { toolName: '' };
  if (name !== undefined) block.tool.toolName = name;
  if (tool !== undefined) block.tool.toolId = tool;
}

/** The input of a call is what its end says, or else what its deltas have said. @param {Block} block @param {string | undefined} input */
function end(block, input) {
  block.done = true;
  if (block.blockType !== 'tool_use') return;
  const said = input ?? (block.content || undefined);
  block.content = '';
  if (said !== undefined) (block.tool ??= { toolName: '' }).input = said;
}
