// Limits as an application writes them, and limits that were checked to hold together.

import type { BudgetLimits, Limits } from './api.js';

const DAY = 86_400_000;

/**
 * Fills in the defaults, and checks that the limits hold together and that a message of the largest size fits the budget.
 *
 * Throws a `RangeError` that names the limit, its value and its range.
 */
export function checked(given: Partial<Limits>, budget: BudgetLimits): Limits {
  const limits: Limits = {
    maxFrameBytes: 4 << 20,
    maxMessageBytes: 32 << 20,
    maxDepth: 1_000_000,
    maxGroups: 8,
    groupTimeoutMs: 0,
    graceMs: 5000,
    maxQueuedBytes: 128 << 20,
    maxHeldBytes: 64 << 20,
  };
  for (const key of Object.keys(limits) as (keyof Limits)[]) limits[key] = given[key] ?? limits[key];
  limits.groupTimeoutMs ||= Math.min(Math.max(Math.ceil(limits.maxMessageBytes / (64 << 10)) * 1000, 30_000), 600_000);
  const largest = budget.floor + Math.min(budget.principal, budget.process);
  const range = (key: keyof Limits, min: number, max: number): void => {
    const value = limits[key];
    if (!(value >= min && value <= max)) throw new RangeError(`${key} is ${value}; it must be from ${min} to ${max}`);
  };
  range('maxFrameBytes', 512, 2 ** 32 - 1);
  range('maxMessageBytes', limits.maxFrameBytes, largest - Math.floor(largest / 4096) - 3072);
  range('maxDepth', 16, 1 << 24);
  range('maxGroups', 1, 1024);
  range('groupTimeoutMs', 1, DAY);
  range('graceMs', 0, DAY);
  range('maxQueuedBytes', 1, Infinity);
  range('maxHeldBytes', 1, Infinity);
  limits.maxGroups = Math.min(limits.maxGroups, Math.floor(largest / groupCost(limits.maxMessageBytes)));
  return limits;
}

/** What a group costs beside its bytes. */
export const GROUP_COST = 2048;

/** What a group costs that may come to so many bytes. */
export const groupCost = (bytes: number): number => bytes + Math.floor(bytes / 4096) + 1024 + GROUP_COST;

/** The time for so many bytes at the rate at which the longest message just arrives in time. */
export const timeFor = (limits: Limits, bytes: number): number =>
  Math.min(limits.groupTimeoutMs, (limits.groupTimeoutMs * bytes) / limits.maxMessageBytes);
