import asyncio, random, time, uuid, msgspec
from tests.survival import load as L, test_outages as T
from tests.survival.test_outages import *
orig=L.Load._journey
async def journey(self, name):
    t0=time.monotonic()
    plan=L.Plan(name, rest=self._chance.choice(L._RESTS))
    handle=await self._client.start(L.journey, plan, id=name, dedupe="forever")
    t1=time.monotonic()
    told=L.Told(handle.run_id,name); self.told.append(told)
    await asyncio.sleep(self._chance.uniform(0,1))
    sig=str(uuid.uuid4()); t2=time.monotonic()
    await handle.signal("word", f"the word for {name}", id=sig); told.signals.append(sig)
    t3=time.monotonic()
    told.result=msgspec.to_builtins(await handle.result(timeout=60))
    t4=time.monotonic()
    if t4-t0>6: print(f"\n{name} {handle.run_id} rest={plan.rest} at {t0:.2f} start {t1-t0:.2f} signal {t3-t2:.2f} result {t4-t3:.2f} end {t4:.2f}")
L.Load._journey=journey
ok=Station.kill; st=Station.start
def kill(self): print(f"\nkill {time.monotonic():.2f}"); ok(self)
def start(self): st(self); print(f"\nstarted {time.monotonic():.2f}")
Station.kill=kill; Station.start=start
