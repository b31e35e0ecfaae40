job "task-env-empty" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      env {
      }
      meta {
      }
    }
  }
}
