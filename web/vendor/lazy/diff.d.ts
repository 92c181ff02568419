export interface Hunk { oldStart: number; oldLines: number; newStart: number; newLines: number; lines: string[] }
export function structuredPatch(
  oldName: string, newName: string, old: string, now: string, oldHeader?: string, newHeader?: string,
  options?: { context?: number; timeout?: number },
): { hunks: Hunk[] } | undefined;
