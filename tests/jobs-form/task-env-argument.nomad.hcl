job "task-env-argument" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      env = {
        "a.b" = "c"
        N = 5
      }
      meta = {
        "x.y" = "z"
      }
    }
  }
}
