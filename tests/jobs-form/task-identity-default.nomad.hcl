job "task-identity-default" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      identity {
        name = "default"
        aud = ["x"]
        file = true
      }
    }
  }
}
