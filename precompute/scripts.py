"""The Lua that makes each write one atomic step. Every script touches one key, so all of it works on a cluster."""

from contracts.embedding import FENCE_AT, HEADER, IMPRESSIONS_AT, LOG_OFFSET_AT, MAGIC

CREATED, REPLACED, UNCHANGED, REFUSED = 1, 2, 0, -1

SET_RECORD = f"""
-- KEYS[1] record; ARGV[1] its bytes, ARGV[2] when it expires (ms, 0: never).
-- A stored record that is newer by (fence, log_offset, impressions) stays. Within one log the three grow with what a
-- record holds. Each is compared as two unsigned halves: a Lua number is a double and loses bits beyond 2^53.
local old, new = redis.call('GET', KEYS[1]), ARGV[1]
local outcome = {CREATED}
if old then
  outcome = {REPLACED}
  if old == new then
    outcome = {UNCHANGED}
  elseif #old >= {HEADER.size} and string.sub(old, 1, {len(MAGIC)}) == '{MAGIC.decode()}' then
    for _, at in ipairs({{ {FENCE_AT + 1}, {LOG_OFFSET_AT + 1}, {IMPRESSIONS_AT + 1} }}) do
      local old_low, old_high = struct.unpack('<I4I4', old, at)
      local new_low, new_high = struct.unpack('<I4I4', new, at)
      if old_high ~= new_high or old_low ~= new_low then
        if old_high > new_high or (old_high == new_high and old_low > new_low) then outcome = {REFUSED} end
        break
      end
    end
  end
end
if outcome > 0 then redis.call('SET', KEYS[1], new) end
if ARGV[2] == '0' then
  if outcome <= 0 then redis.call('PERSIST', KEYS[1]) end
else
  redis.call('PEXPIREAT', KEYS[1], ARGV[2])
end
return outcome
"""

SWAP_VALUE = """
-- KEYS[1]: becomes ARGV[2] if it is ARGV[1] now ('': absent). The flip of the live pointer.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""

SWAP_FIELD = """
-- Field ARGV[1] of the hash KEYS[1]: becomes ARGV[3] ('': deleted) if it is ARGV[2] now ('': absent).
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return 1
"""

RAISE_VALUE = """
-- KEYS[1] becomes ARGV[1] unless it is larger already (times in ms, far below 2^53); ARGV[2] as in SET_RECORD.
local old = tonumber(redis.call('GET', KEYS[1]) or '')
if not old or old < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
if ARGV[2] == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIREAT', KEYS[1], ARGV[2]) end
return 1
"""
