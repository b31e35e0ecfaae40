job "job-parameterized-empty" {
  type = "batch"
  parameterized {
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
