"""A day in the life of a program that is written with python-nomad; NOMAD_ADDR and NOMAD_TOKEN say where."""

import base64
import os
import queue
import time

import nomad
from nomad.api import exceptions

JOB = """
job "py" {
  type = "service"
  meta {
    colour = "%s"
  }
  group "g" {
    update {
      min_healthy_time = "0s"
    }
    service {
      name     = "py"
      provider = "nomad"
      port     = 4712
      address  = "127.0.0.1"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo usr1' USR1; echo started; while :; do sleep 0.1; done"]
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
"""

PARAM = """
job "param" {
  type = "batch"
  parameterized {
    payload       = "required"
    meta_required = ["who"]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "cat local/in; echo $NOMAD_META_who"]
      }
      dispatch_payload {
        file = "in"
      }
    }
  }
}
"""


def until(what, ask):
    """What ask answers, as soon as that is true."""
    deadline = time.monotonic() + 60
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def refused(kind, call, *arguments, **named):
    """A call fails with this exception, whose text it returns."""
    try:
        answer = call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} answers {answer}")


def only(job, status):
    """The only allocation of a job, as soon as it has this status."""
    def ask():
        allocs = n.job.get_allocations(job)
        return allocs[0] if len(allocs) == 1 and allocs[0]["ClientStatus"] == status else None

    return until(f"{job} is {status}", ask)


n = nomad.Nomad(timeout=60)
assert n.status.leader.get_leader()
assert len(list(n.status.peers)) == 1
assert list(n.regions) == ["global"]
assert n.agent.get_agent()["config"]["Region"] == "global"
assert len(n.agent.get_members()["Members"]) == 1
stranger = nomad.Nomad(token="00000000-0000-0000-0000-000000000000")
refused(exceptions.URLNotAuthorizedNomadException, stranger.jobs.get_jobs)

# What happens is told from now on.
stream, stop, events = n.event.stream.get_stream(topic={"Job": "py"}, timeout=60)
stream.daemon = True
stream.start()

job = n.jobs.parse(JOB % "blue", canonicalize=True)
assert job["ID"] == "py" and job["Type"] == "service", job
assert "1" in refused(exceptions.BadRequestNomadException, n.jobs.parse, 'job "x" {')
assert n.validate.validate_job({"Job": job}).json()["ValidationErrors"] in (None, [])
plan = n.job.plan_job("py", {"Job": job}, diff=True)
assert plan["Diff"]["Type"] == "Added" and plan["Annotations"]["DesiredTGUpdates"]["g"]["Place"] == 1, plan
registered = n.job.register_job("py", {"Job": job})
assert registered["EvalID"], registered
alloc = only("py", "running")
evaluation = n.evaluation.get_evaluation(registered["EvalID"])
assert evaluation["JobID"] == "py" and evaluation["Status"] == "complete", evaluation
assert "py" in n.jobs and "py" in n.job and len(n.jobs) == 1 and n.jobs["py"]["ID"] == "py"
assert n.jobs.get_jobs(prefix="p")[0]["ID"] == "py" and n.jobs.get_jobs(prefix="q") == []
assert n.job.get_summary("py")["Summary"]["g"]["Running"] == 1
assert registered["EvalID"] in n.evaluations and registered["EvalID"] in n.evaluation

while True:
    told = [event for event in events.get(timeout=60)["Events"] if event["Topic"] == "Job"]
    if told:
        assert told[0]["Key"] == "py" and told[0]["Payload"]["Job"]["ID"] == "py", told
        break
stop.set()

name = alloc["ID"]
assert n.allocation.get_allocation(name)["TaskStates"]["t"]["State"] == "running"
assert name in n.allocation and name in {of["ID"] for of in n.allocations}
n.client.allocation.signal_allocation(name, "SIGUSR1", task="t")
LOG = "alloc/logs/t.stdout.0"
TEXT = "started\nusr1\n"
until("it answers the signal", lambda: n.client.cat.read_file(name, LOG) == TEXT)
assert n.client.read_at.read_file_offset(name, 8, 4, LOG) == "usr1"
assert n.client.stream_logs.stream(name, "t", "stdout", plain=True) == TEXT
assert base64.b64encode(TEXT.encode()).decode() in n.client.stream_logs.stream(name, "t", "stdout")
assert n.client.stat.stat_file(name, LOG)["Size"] == len(TEXT)
assert {"alloc", "t"} <= {entry["Name"] for entry in n.client.ls.list_files(name, "/")}
assert n.client.stats.read_stats()["Memory"]["Total"] > 0
used = n.client.allocation.read_allocation_stats(name)
assert used["Tasks"]["t"]["ResourceUsage"]["MemoryStats"]["RSS"] > 0, used
n.client.allocation.restart_allocation(name)
until("it is restarted", lambda: n.allocation[name]["TaskStates"]["t"]["Restarts"] == 1)
refused(exceptions.URLNotFoundNomadException, n.allocation.get_allocation, "00000000-0000-0000-0000-000000000000")

deployment = until("it is deployed", lambda: [d for d in n.job.get_deployments("py") if d["Status"] == "successful"])[0]
assert deployment["ID"] in n.deployment and deployment["ID"] in n.deployments
assert n.deployment.get_deployment_allocations(deployment["ID"])[0]["ID"] == name

changed = n.jobs.parse(JOB % "green", canonicalize=True)
n.jobs.register_job({"Job": changed})
until("the second version is stable", lambda: n.job["py"]["Version"] == 1 and n.job["py"]["Stable"])
assert [version["Version"] for version in n.job.get_versions("py")["Versions"]] == [1, 0]
assert n.job.revert_job("py", 0)["EvalID"]
assert n.job.evaluate_job("py")["EvalID"]
assert n.search.search("py", "jobs")["Matches"]["jobs"] == ["py"]
assert n.search.fuzzy_search("py", "jobs")["Matches"]["jobs"]
assert n.scaling.get_scaling_policies() == []

n.jobs.register_job({"Job": n.jobs.parse(PARAM, canonicalize=True)})
assert "who" in refused(exceptions.BaseNomadException, n.job.dispatch_job, "param", payload="eA==")
sent = n.job.dispatch_job("param", payload=base64.b64encode(b"from afar\n").decode(), meta={"who": "me"})
child = only(sent["DispatchedJobID"], "complete")
assert n.client.cat.read_file(child["ID"], LOG) == "from afar\nme\n"

made = n.variable.create_variable("nomad/jobs/py", {"Path": "nomad/jobs/py", "Items": {"k": "v"}}, cas=0)
assert n.variable["nomad/jobs/py"]["Items"] == {"k": "v"} and "nomad/jobs/py" in n.variables
refused(exceptions.VariableConflict, n.variable.create_variable, "nomad/jobs/py", {"Items": {"k": "w"}}, cas=0)
n.variable.delete_variable("nomad/jobs/py", cas=made["ModifyIndex"])
assert "nomad/jobs/py" not in n.variable

assert list(n.namespaces)[0]["Name"] == "default"
n.namespace.create_namespace({"Name": "other", "Description": "by python"})
assert n.namespace.get_namespace("other")["Description"] == "by python" and "other" in n.namespaces
refused(exceptions.BaseNomadException, nomad.Nomad(namespace="nosuch").job.register_job, "py", {"Job": job})
n.namespace.delete_namespace("other")

node = list(n.nodes)[0]
assert node["Status"] == "ready" and node["ID"] in n.node and n.node[node["ID"]]["Attributes"]["kernel.name"] == "linux"
assert name in {of["ID"] for of in n.node.get_allocations(node["ID"])}
n.node.eligible_node(node["ID"], ineligible=True)
assert n.node[node["ID"]]["SchedulingEligibility"] == "ineligible"
n.node.eligible_node(node["ID"], eligible=True)
assert n.node[node["ID"]]["SchedulingEligibility"] == "eligible"
gauges = {gauge["Name"] for gauge in n.metrics.get_metrics()["Gauges"]}
assert "nomad.client.allocations.running" in gauges, gauges
assert n.operator.get_configuration()["Servers"]
n.system.initiate_garbage_collection()
n.system.reconcile_summaries()

n.job.deregister_job("py", purge=True)
refused(exceptions.URLNotFoundNomadException, n.job.get_job, "py")
print("python-nomad has done all of it at", os.environ["NOMAD_ADDR"])
