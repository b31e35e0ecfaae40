job "task-identity-named" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      identity {
        name = "only"
      }
    }
  }
}
