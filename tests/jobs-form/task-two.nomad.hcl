job "task-two" {
  group "g" {
    task "a" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
    task "b" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
