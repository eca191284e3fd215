import asyncio, json, sys, os, subprocess, shutil
sys.path.insert(0,'/work/wt/responses14')
os.chdir('/work/wt/responses14')
from tests.serving.api.served import *
def call(cmd): return {"name":"exec_command","arguments":json.dumps({"cmd":cmd})}
A={"name":"a","kind":"scripted","replies":[{"text":"I look.","calls":[{"name":"read","arguments":{"filePath":"/tmp/w/oc/proj/hello.py"}}]},"It prints helo."]}
B={"name":"b","kind":"scripted","replies":[{"text":"I fix it.","calls":[{"name":"edit","arguments":{"filePath":"/tmp/w/oc/proj/hello.py","oldString":"helo","newString":"hello"}}]},"Fixed."]}
C=scripted("c","All done: hello.py says hello now.")
async def main():
    proj='/tmp/w/oc/proj'; shutil.rmtree(proj,ignore_errors=True); os.makedirs(proj); open(proj+'/hello.py','w').write('print("helo")\n')
    home='/tmp/w/oc/home'; shutil.rmtree(home,ignore_errors=True); os.makedirs(home)
    p=plan(step("a","Look."),step("b","Fix.",[0]),step("c","Say.",[0,1]))
    async with served(team(p,workers=[A,B,C],workflows={})|{"models":{"podium":{}}}) as api:
        conf={"$schema":"https://opencode.ai/config.json","provider":{"podium":{"npm":"@ai-sdk/openai","name":"Podium","options":{"baseURL":api.url+"/v1","apiKey":"k"},"models":{"podium":{"name":"Podium","tool_call":True,"reasoning":True,"limit":{"context":200000,"output":32000}}, "c":{"name":"c"}}}},"model":"podium/podium","small_model":"podium/c","autoupdate":False,"share":"disabled","permission":{"*":"allow"}}
        json.dump(conf,open(proj+'/opencode.json','w'))
        env=dict(os.environ,HOME=home,OPENCODE_CONFIG=proj+'/opencode.json',OPENCODE_DISABLE_AUTOUPDATE="1",OPENCODE_DISABLE_MODELS_FETCH="1",XDG_DATA_HOME=home+'/d',XDG_CONFIG_HOME=home+'/c',XDG_CACHE_HOME=home+'/x',XDG_STATE_HOME=home+'/s')
        out=open('/tmp/w/oc/oc.log','w')
        import glob
        binary=[x for x in glob.glob('/tmp/w/oc/node_modules/opencode-linux-x64/bin/opencode')][0]
        pr=await asyncio.create_subprocess_exec(binary,'run','-m','podium/podium','Fix the typo in hello.py',cwd=proj,env=env,stdin=subprocess.DEVNULL,stdout=out,stderr=subprocess.STDOUT)
        try: await asyncio.wait_for(pr.wait(),80)
        except asyncio.TimeoutError: pr.kill(); print('TIMEOUT')
        print(open('/tmp/w/oc/oc.log').read()[-3000:])
        print('FILE:',open(proj+'/hello.py').read(),'rc',pr.returncode)
        print([ (r["id"][:8],r["status"],len(r["steps"]), r.get("left_out")) for r in (await api.http.get("/v1/workflows")).json()["data"]])
        for w in "abc": print(w,len(api.worker(w).calls))
asyncio.run(main())
