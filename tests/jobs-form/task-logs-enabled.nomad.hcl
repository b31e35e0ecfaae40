job "task-logs-enabled" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      logs {
        enabled = false
      }
    }
  }
}
