job "task-config-empty" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
      }
    }
  }
}
