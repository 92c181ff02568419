// The wire form once more, written by the RFC and not by the package: what the vectors judge it by.

/** One `ahp/messageSegment` frame. */
export function segment(group, index, total, bytes) {
  const params = `{"groupId":${JSON.stringify(group)},"index":${index},"total":${total},"data":"${Buffer.from(bytes).toString('base64')}"}`;
  return Buffer.from(`{"jsonrpc":"2.0","method":"ahp/messageSegment","params":${params}}`);
}

/** What one frame is: a segment, or a message of its own. */
export function piece(frame) {
  let params;
  try {
    const value = JSON.parse(frame.toString());
    if (value.method === 'ahp/messageSegment') params = value.params;
  } catch {
    // Not JSON, so it is a message of its own.
  }
  if (!params) return { whole: frame };
  const { groupId: group, index, total, data } = params;
  return { group, index, total, bytes: Buffer.from(data, 'base64') };
}

/** The messages that frames carry, in the order in which each is complete. */
export function messages(frames) {
  const open = new Map();
  const done = [];
  for (const { whole, group, index, total, bytes } of frames.map(piece)) {
    if (whole) done.push(whole);
    else {
      const parts = open.get(group) ?? [];
      if (index !== parts.length) throw new Error(`segment ${index} where ${parts.length} was due`);
      parts.push(bytes);
      open.set(group, parts);
      if (parts.length < total) continue;
      open.delete(group);
      done.push(Buffer.concat(parts));
    }
  }
  if (open.size) throw new Error(`${open.size} messages are unfinished`);
  return done;
}

/**
 * Names each frame by the message that it carries: `2` for the second one sent, `2.0/3` for its first segment of three, and `?` for a
 * frame that carries none of them as it was sent.
 */
export function trace(sent, frames) {
  const pieces = frames.map(piece);
  const named = (bytes) => {
    let place = sent.findIndex((text) => text.equals(bytes));
    // A group of which only a part was taken is told by that part.
    if (place < 0) place = sent.findIndex((text) => bytes.length > 0 && text.includes(bytes));
    return place < 0 ? '?' : String(place + 1);
  };
  const whole = (group) => Buffer.concat(pieces.filter((one) => one.group === group).map(({ bytes }) => bytes));
  return pieces.map((one) =>
    one.whole ? named(one.whole) : `${named(whole(one.group))}.${one.index}/${one.total}`,
  );
}
