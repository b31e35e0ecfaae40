job "task-payload" {
  type = "batch"
  parameterized {
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      dispatch_payload {
        file = "input.json"
      }
    }
  }
}
