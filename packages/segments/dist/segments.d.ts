/** What we accept. Sizes are in bytes of UTF-8. */
export interface Limits {
    /** The longest frame. 4 MiB. */
    maxFrameBytes: number;
    /** The longest message, reassembled. 32 MiB. */
    maxMessageBytes: number;
    /** How deep arrays and objects may be nested. A million levels, far above what peers send. */
    maxDepth: number;
    /** How many groups of segments the peer may have open. 8. */
    maxGroups: number;
    /**
     * How long a group may take. By default what the longest message takes at 64 KiB a second, at least 30 s and at most ten minutes.
     */
    groupTimeoutMs: number;
    /** How much longer than we advertise we wait for a group, whose segments may be on their way. 5 s. */
    graceMs: number;
    /** Bytes of messages that may wait to be sent. 128 MiB. */
    maxQueuedBytes: number;
    /** Bytes of finished messages that start-order delivery may hold back. 64 MiB. */
    maxHeldBytes: number;
}
/** The limits of one side, as they go over the wire in `capabilities.chunking`. */
export interface Chunking {
    /** The longest frame, segment or not. */
    maxFrameBytes: number;
    /** The longest message, reassembled. */
    maxMessageBytes: number;
    /** How many groups may be open. */
    maxGroups: number;
    /** How long a group may take. */
    groupTimeoutMs: number;
    /** Whether this side resumes from a settled cursor, so that messages may finish out of order across channels. */
    settledCursor: boolean;
}
/** Memory that several connections may hold together, in bytes. */
export interface BudgetLimits {
    /** By all connections, beyond their floors. 512 MiB. */
    process: number;
    /** By all connections of one principal, beyond their floors. 320 MiB. */
    principal: number;
    /** By each connection for itself. 64 KiB. */
    floor: number;
}
/** A budget that connections share: see `sharedBudget`. */
export interface SharedBudget {
    readonly limits: BudgetLimits;
    /** Bytes that all connections hold. */
    held(): number;
}
/** What was negotiated on earlier connections: see `negotiationMemory`. */
export interface NegotiationMemory {
    /** The limits of the other side when this client last connected; `null` if nothing is remembered. */
    agreed(clientId: string | null): {
        theirs: Chunking | null;
    } | null;
}
/** How much a link takes. */
export interface Capacity {
    /** The longest frame, in bytes. */
    cap: number;
    /** What the link adds to a frame, by its length and by its length inside of a JSON string. */
    overhead?: (bytes: number, escaped: number) => number;
}
export interface Options extends Partial<Limits> {
    /** Which side of AHP this is. A client, by default. */
    role?: 'client' | 'server';
    /**
     * When messages that change state are delivered. `start-order`, the default: when all that began before them have finished, for
     * applications whose cursor is the highest `serverSeq` that they saw. `settled`: as soon as they have finished, for applications that
     * resume from `cursor`, and skip what they have applied already.
     */
    delivery?: 'start-order' | 'settled';
    /** What the link takes, where a relay caps frames. Without one there is no limit but the peer's. */
    link?: Capacity;
    /** What the peer takes, if both sides know each other's limits beforehand and there is no handshake. */
    agreed?: Chunking;
    /** What earlier connections negotiated. By default one memory for all sockets with the same address. */
    negotiated?: NegotiationMemory;
    /** Memory that is shared with other connections. By default each has its own budget. */
    budget?: SharedBudget;
    /** Whose connection it is, in a shared budget. */
    principal?: string;
}
/** Why a connection has closed. */
export interface CloseReason {
    /** A short name for counters and logs, the same as that of the Rust library. */
    readonly name: string;
    /** The WebSocket close code. */
    readonly code: number;
    /** A sentence with sizes and limits, and never with the peer's text. */
    readonly because: string;
    /** What the peer gets with the code: at most 123 bytes. */
    readonly text: string;
}
/** How far a large message has come, after each of its segments. */
export interface ProgressDetail {
    readonly direction: 'in' | 'out';
    /** Tells the messages of one direction apart. */
    readonly id: number;
    readonly done: number;
    readonly total: number;
}
/** A message of ours that was not sent. If it is a request, an error response to it has come as a message too. */
export interface SendFailedDetail {
    readonly name: string;
    readonly because: string;
    readonly text: string;
}
/** The events of a `SegmentedSocket`: those of a WebSocket, and more. */
export interface SegmentedEvents {
    open: Event;
    message: MessageEvent<string>;
    error: Event;
    close: Event & {
        readonly code: number;
        readonly reason: string;
        readonly wasClean: boolean;
    };
    /** How far a large message has come. */
    progress: CustomEvent<ProgressDetail>;
    /** A large message is complete, or was sent whole. */
    done: CustomEvent<{
        readonly direction: 'in' | 'out';
        readonly id: number;
    }>;
    /** A group took too long. Its message will not come on this link. */
    expired: CustomEvent<{
        readonly id: number;
        readonly received: number;
    }>;
    sendfailed: CustomEvent<SendFailedDetail>;
}
export interface SendOptions {
    /** The message may pass others, and be passed. */
    free?: boolean;
}
/** As in the npm `ws` class: called when the message was handed to the socket whole, or why it was not. */
export type SendCallback = (error?: Error) => void;
/** What a client uses of a WebSocket, for whole messages; and what more can be known. */
export interface SegmentedSocket {
    readonly CONNECTING: 0;
    readonly OPEN: 1;
    readonly CLOSING: 2;
    readonly CLOSED: 3;
    readonly readyState: number;
    readonly url: string;
    readonly protocol: string;
    readonly extensions: string;
    /** Has no effect: messages are texts. */
    binaryType: string;
    /** Bytes that wait here and in the socket. */
    readonly bufferedAmount: number;
    onopen: ((event: SegmentedEvents['open']) => void) | null;
    onmessage: ((event: SegmentedEvents['message']) => void) | null;
    onerror: ((event: SegmentedEvents['error']) => void) | null;
    onclose: ((event: SegmentedEvents['close']) => void) | null;
    /** Sends one JSON-RPC message of any size. */
    send(message: string, options?: SendOptions | SendCallback, callback?: SendCallback): void;
    /** Sends what waits, and closes. */
    close(code?: number, reason?: string): void;
    addEventListener<K extends keyof SegmentedEvents>(type: K, listener: (event: SegmentedEvents[K]) => void, options?: boolean | AddEventListenerOptions): void;
    removeEventListener<K extends keyof SegmentedEvents>(type: K, listener: (event: SegmentedEvents[K]) => void): void;
    /** As in the npm `ws` class: a `message` listener gets the text, a `close` listener the code and the reason. */
    on(type: keyof SegmentedEvents, listener: (...values: unknown[]) => void): this;
    once(type: keyof SegmentedEvents, listener: (...values: unknown[]) => void): this;
    off(type: keyof SegmentedEvents, listener: (...values: unknown[]) => void): this;
    /** What we take. */
    readonly ours: Chunking;
    /** What the peer takes; `null` while it takes no segments. */
    readonly peer: Chunking | null;
    /** The `serverSeq` to resume from: the highest among settled messages. */
    readonly cursor: number | null;
    /** Says, in a message listener, that this message (a snapshot, a replay) brought the application up to `seq`. */
    noteSeq(seq: number): void;
    /** How often each named reason occurred. */
    readonly counters: Readonly<Record<string, number>>;
    /** Frames and their characters, both ways. */
    readonly traffic: Readonly<{
        framesIn: number;
        charsIn: number;
        framesOut: number;
        charsOut: number;
    }>;
    readonly closeReason: CloseReason | null;
}
/** What is needed of a WebSocket: that of a browser, of Node, of the npm `ws` class, and others like them. */
export interface WebSocketLike {
    readonly readyState: number;
    readonly bufferedAmount: number;
    readonly url?: string;
    readonly protocol?: string;
    readonly extensions?: string;
    binaryType: string;
    send(data: string): void;
    close(code?: number, reason?: string): void;
    addEventListener(type: any, listener: (event: any) => void): void;
}
/** A duplex of strings, of which each is one frame. */
export interface TextDuplex {
    readonly readable: ReadableStream<string>;
    readonly writable: WritableStream<string>;
}

/**
 * Wraps a socket that carries frames into one that carries whole messages. An AHP client that is given the result in place of the socket
 * needs no change: the handshake that passes through negotiates segments, and messages of any size go both ways.
 *
 * Throws a `RangeError` if the limits do not hold together.
 */
export declare function segmented(socket: WebSocketLike | TextDuplex, options?: Options): SegmentedSocket;
/** A budget for the memory of several connections. */
export declare function sharedBudget(limits?: Partial<BudgetLimits>): SharedBudget;
/** A memory of what connections negotiate, to be passed to each of them. */
export declare function negotiationMemory(): NegotiationMemory;
