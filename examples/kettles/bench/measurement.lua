-- For wrk: nothing but POST /measurement, of a thousand kettles in turn, no two of them the same. Each
-- kettle's next one is a millisecond later, so what the next run sends is later than all of this.
local count = 0
local start = os.time() - 86000

function request()
  count = count + 1
  local step = math.floor(count / 1000)
  return wrk.format("POST", "/measurement", {
    ["servant-auth-cookie"] = string.format("0f8fad5b-d9cb-469f-a165-%012x", count % 1000),
  }, string.format(
    '{"time":"%s.%03dZ","charge_now":%d,"charge_full":250000,"charge_rate":-150.0,' ..
      '"ambient_temp":%.1f,"water_temp":%.1f,"water_level":%d}',
    os.date("!%Y-%m-%dT%H:%M:%S", start + math.floor(step / 1000)), step % 1000, count % 250000,
    18 + count % 60 / 10, 20 + count % 800 / 10, count % 1700))
end
