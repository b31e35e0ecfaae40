job "job-secret" {
  secret "s" {
    provider = "nomad"
    path = "nomad/jobs"
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
